"""The policies of Fang et al. (CIKM 2017): batch size and variant by the value of answers."""
