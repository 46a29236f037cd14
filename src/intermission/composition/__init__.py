"""The one place that picks backends and puts the parts together by the settings."""
