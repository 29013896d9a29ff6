"""`tilec explain`: what was made of a kernel, as one HTML page that needs no network.

stages    the text of each stage, with the source line of each of its lines
schedule  what a block does over time: roles, rings, the order of statements, in predicted clocks
layouts   where the elements of each tile live, as digits that the page draws
facts     all of that for one kernel, one target and one set of arguments
page      the facts as HTML; `parts` are its sections, style.css what it looks like, script.js what
          it does
"""
