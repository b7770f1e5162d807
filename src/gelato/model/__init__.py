"""The variational latent model of dynamics: its pieces, its objective, the two-phase fit, and how good it is."""
