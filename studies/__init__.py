"""Research questions answered once, with their reports."""
