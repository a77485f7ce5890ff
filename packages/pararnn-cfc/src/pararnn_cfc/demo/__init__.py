"""`pararnn demo`: a `ParaCfC` that forecasts CO2 at Mauna Loa from the weeks that were measured, trained in parallel over time.

`series` has the data, `task` what is known when and what is to be forecast, `model` and `baselines` the forecasts, `training`, `comparison` and
`evaluation` the work, `plots` and `report` what there is to see. Needs the extra `pararnn-cfc[demo]`.
"""
