"""The dispatcher: one queue per model, and schedulers that choose what runs next and where."""
