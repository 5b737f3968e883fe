"""What a cluster has: nodes and pods as they are, pools of equal nodes, and where a run fits into them."""
