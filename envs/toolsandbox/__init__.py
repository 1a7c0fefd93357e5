"""ToolSandbox: a phone with contacts, messages, reminders, settings and network services."""
