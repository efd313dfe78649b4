from streamgen.models.architecture import Architecture

QWEN3 = Architecture("Qwen3ForCausalLM", fixed={"qk_norm": True, "mlp_bias": False})
"""Qwen3: an RMSNorm on each head of q and k before rope."""
