"""Words that all rooms share: errors, settings, log, counters, element types, operators, sizes."""
