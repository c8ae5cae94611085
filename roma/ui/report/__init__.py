"""Report on a recorded run, on one page: for a post-mortem, or for a paper."""
