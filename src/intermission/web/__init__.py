"""The server: HTTP at the edge of the fleet. Imported late; nothing below it may import it."""
