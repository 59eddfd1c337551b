"""The tuner: measures forms and schedules of one captured graph on its own arguments, and keeps what it found."""
