from streamgen.models.architecture import Architecture

QWEN2 = Architecture("Qwen2ForCausalLM", fixed={"qk_norm": False, "qkv_bias": True, "o_bias": False, "mlp_bias": False})
"""Qwen2 and 2.5: q, k and v have a bias, nothing else has."""
