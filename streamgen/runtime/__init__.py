"""The GPU thread's side: from a StepPlan to sampled token ids."""
