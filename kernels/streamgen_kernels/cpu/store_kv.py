from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """See `operators.StoreKv`."""
    if slot_mapping.numel() == 0:
        return
    if int(slot_mapping.min()) < 0:
        wanted = (slot_mapping >= 0).nonzero()[:, 0]
        k, v, slot_mapping = k[wanted], v[wanted], slot_mapping[wanted]
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slot_mapping, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slot_mapping, v)
