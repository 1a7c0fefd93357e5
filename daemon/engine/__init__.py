"""The embedded inference server, for machines without vLLM (route); so far its reference policy."""
