"""stub"""
KINDS = {}
WHO = "Who?"
def write_task(*a): raise KeyError
