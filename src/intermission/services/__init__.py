"""What a server does by itself: watches, alerts, retention."""
