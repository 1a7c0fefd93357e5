"""ToolSandbox: a telephone with contacts, messages, reminders, settings and network services."""
