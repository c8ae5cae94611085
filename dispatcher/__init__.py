"""The dispatcher: one queue per model, and the schedulers that decide what runs next where."""
