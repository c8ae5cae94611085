"""Learns a policy of batch size and variant from simulated devices (Fang et al., CIKM 2017, §3.2).

    rollouts   the environment: what a policy did on a stretch of load, and what that cost
    gradient   the network, and what changes its weights (TensorFlow)
    training   imitate the heuristic, then follow the gradient; write the best as a file

Whoever serves a policy imports none of this.
"""
