"""Server of a planned device: executes actions in their windows and schedules nothing."""
