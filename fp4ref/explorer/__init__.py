"""The explorer: one HTML file in which a reader moves between elements, scales and bytes."""
