"""SAGIPS: an asynchronous solver for inverse problems (arXiv 2407.00051).

A generator proposes parameters, a differentiable pipeline makes events from them, an objective compares these with
measured events. Many ranks solve together and exchange the generator's gradients.
"""
