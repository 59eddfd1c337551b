"""Loop IR to text: pure functions, no files, no subprocess, no clock."""
