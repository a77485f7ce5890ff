"""HiPPO matrices and their normal plus low-rank form."""
