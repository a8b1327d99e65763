"""Generates click logs with users, items, impressions and clicks.

The best AUC that any model can reach on such a log is known. The content of a day depends only on the seed,
the configured sizes and the date. So a day has the same bytes whenever and on whichever worker it is
generated. Read the modules in this order:

* `click_probability`: the columns, and the click probability of a row.
* `impressions`: users and items, and which user sees which item.
* `lines`: conversion of rows to lines, and counts of rows.
* `generate`: writes the files.
* `truth`: computes the true probabilities of a day.

In the layout `criteo`, a row consists of the label (1 for a click) and the columns in the order below,
separated by tabs. Rows are ordered by time. In the layout `named`, a row consists of `clicked` (the
label), `event_time` (seconds since 1970 UTC) and the same columns under readable names, separated by commas.
Files of this layout have a header. All fields except label, time and the two ids may be empty. A category
with n levels has the codes 0 to n - 1. Codes are written as 8 hex digits in the layout `criteo`, and for
example as `segment_3` in the layout `named`. Integers are decimal.

In the table below, a number at the end of a meaning is the number of levels of a category. The last column of
the table shows whether a column changes the click probability. In this column, "with item_category" means
that each pair of values of the two columns has its own effect.

    criteo  named                  meaning                                            changes the probability
    I1      user_days_registered   age of the account in days                         no
    I2      user_visits            visits in the last month                           yes, by its logarithm
    I3      user_spend_cents       money spent in the last month                      no
    I4      user_reviews_written   reviews the user wrote                             no
    I5      user_age               years                                              by user_age_group
    I6      item_price_cents       price                                              no
    I7      item_reviews           reviews the item has                               yes, by its logarithm
    I8      item_rating_tenths     mean rating, 10 to 50                              yes, by its logarithm
    I9      item_days_listed       days in the catalogue                              no
    I10     item_weight_grams      weight                                             no
    I11     page_position          place on the page, 1 is the top                    yes, by its logarithm
    I12     session_seconds        time since the session began                       no
    I13     session_views          pages seen in the session                          no
    C1      user_id                the user (named: `u` and a number)                 no
    C2      item_id                the item (named: `i` and a number)                 no
    C3      user_segment           type of the user, 12                               with item_category
    C4      user_interest          interest of the user, 16                           with item_theme
    C5      user_age_group         eight years each, 8                                with item_brand_tier
    C6      user_household         size of the household, 6                           with item_price_band
    C7      user_plan              membership, 4                                      yes
    C8      user_region            12                                                 no
    C9      user_style             8                                                  with item_colour
    C10     user_language          language, 5                                        no
    C11     user_channel           how the user signed up, 6                          no
    C12     item_category          20                                                 with user_segment
    C13     item_theme             12                                                 with user_interest
    C14     item_brand_tier        from budget to luxury, 6                           with user_age_group
    C15     item_price_band        range of prices, 8                                 with user_household
    C16     item_popularity        tenth of the catalogue by today's popularity, 10   yes
    C17     item_origin            10                                                 no
    C18     item_colour            10                                                 with user_style
    C19     item_seller            8                                                  with device
    C20     item_material          8                                                  no
    C21     hour_bucket            three hours each from midnight UTC, 8              yes
    C22     device                 4                                                  with item_seller
    C23     referrer               where the visit came from, 6                       yes
    C24     placement              kind of page, 5                                    yes
    C25     connection             4                                                  no
    C26     browser                6                                                  no
"""
