"""Everything that is shown of a plan: the decisions, the summary, the picture of memory, the dump."""

from remat_compiler.report.plan_html import report_html
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import summary_text

# Here, since the text needs the report's type, and a method of the report would need the text.
PlanReport.__str__ = summary_text  # type: ignore[method-assign, assignment]
PlanReport._repr_html_ = report_html  # type: ignore[method-assign, assignment]
