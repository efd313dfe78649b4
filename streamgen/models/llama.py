from streamgen.models.architecture import Architecture

LLAMA = Architecture("LlamaForCausalLM", fixed={"qk_norm": False})
"""Llama 1 to 3, SmolLM2 and kin: biases as the config says."""
