"""Dashboard: per-model state joined from dispatcher and supervisors, with a reason in words."""
