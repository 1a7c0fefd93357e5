"""Who answers a call: routes, sticky sessions, engines (route)."""
