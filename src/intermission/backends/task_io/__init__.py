"""How slots read and write: `TaskIO` over a store. The one over HTTP is in `backends/http`."""
