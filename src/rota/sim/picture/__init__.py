"""Charts without any library: functions of plain data give a `Canvas`, which `svg` and `png` write down.

`series` turns schedules into that plain data. What is drawn is data too: every name is escaped or drawn as it is.
"""
