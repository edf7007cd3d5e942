"""One panel per question."""
