"""What a recorded run was like, on one page: for a post-mortem, or for a paper."""
