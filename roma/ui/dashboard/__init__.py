"""What people look at: both halves of ROMA put together, per model, and said in words."""
