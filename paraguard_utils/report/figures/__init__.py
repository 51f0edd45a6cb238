"""The figures: every function `plot_...` of the modules here.

`publish_figure` writes one and shows it.
"""

from paraguard_lab.report.figures import validity
from paraguard_utils.report.figures import cohorts, corpus, guards, scoring
from paraguard_utils.report.figures.style import publish_figure as publish_figure

for _module in (cohorts, corpus, guards, scoring, validity):
    globals().update(
        {name: made for name, made in vars(_module).items() if name.startswith("plot_")}
    )
