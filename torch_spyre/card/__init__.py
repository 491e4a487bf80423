"""The hardware description, as data, and the timing model that planners and the card share."""
