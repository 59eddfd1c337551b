"""Models and trainings to import or to copy: one file for each task. `graphweave train` trains them."""
