"""How is a run drawn?

This room will hold the pages that show a run folder: curves, rollouts, health, reports. It will only ever
read, and it is empty so far: until then the files in the run folder are the way to look. Left out for good:
recording and alarms (``observe``), and anything that changes a run.
"""
