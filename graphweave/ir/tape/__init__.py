"""The tape IR: what runs when one half of a program is called."""
