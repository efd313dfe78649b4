"""Between the front end and the device: admission, the engine step coroutine, the GPU thread, the token queues."""
