"""The comparison of rules over tasks, rates and seeds, each setting trained as one ensemble of networks."""
