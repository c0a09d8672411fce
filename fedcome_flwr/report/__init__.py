"""What a run leaves behind: round reports as JSON lines."""
