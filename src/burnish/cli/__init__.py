"""What parses argv? One file per verb; each is imported only when its verb is called.

Leaves out what the verbs do: that is in the rooms below, and the same from Python. Progress bars live here
alone, fed by events.
"""
