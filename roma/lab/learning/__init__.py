"""Learns a policy of batch size and variant from simulated devices (Fang et al., CIKM 2017, §3.2).

    rollouts   the environment: a policy's actions on a stretch of load, and their costs
    gradient   the network and its weight updates (TensorFlow)
    training   imitate the heuristic, then follow the gradient; write the best as a file

Serving a policy imports none of this.
"""
