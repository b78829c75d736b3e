"""What holds weights? Loading, LoRA, saving, log-probabilities, inference decoders.

Leaves out the loop that moves weights (`train`) and who asks for tokens (`rollout`).
"""
