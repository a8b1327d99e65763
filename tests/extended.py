"""Which tests only `make test-extended` runs: those that prove once more what a test of `make test` shows.

Each entry is the beginning of the ids of tests; `*` stands for any text. In a run of all tests, an entry that
begins no id is an error. The comment before each group says which tests of `make test` show the same behaviour, if
any can: clusters, HDFS and Azure are only here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EXTENDED = (
    # Airflow's scheduler, and a training by `dag.test`. The DAGs' tasks, retries and dates: test_dags.py.
    "tests/airflow/test_scheduler.py",
    "tests/airflow/test_dags.py::test_a_training_and_a_day_run_by_dag_test",
    # Rehearsals of benchmarks. Their parts and summary lines: the other tests of these files.
    "tests/benchmarks/test_gpu.py::test_every_part_runs_and_measures_nothing",
    "tests/benchmarks/test_gpu.py::test_the_results_are_two_files",
    "tests/benchmarks/test_gpu.py::test_parts_with_a_result_are_not_run_again",
    "tests/benchmarks/test_scoring.py::test_the_benchmark_ends_in_one_json_line",
    "tests/benchmarks/test_scoring.py::test_every_contender_gives_the_models_scores",
    "tests/benchmarks/test_overlap.py::test_a_small_run_on_real_ranks",
    "tests/benchmarks/test_loader.py::test_the_interference_of_each_loader_is_measured",
    "tests/benchmarks/test_loader.py::test_the_benchmark_ends_in_one_json_line",
    "tests/benchmarks/test_peers.py::test_our_job_makes_the_table_that_pandas_makes[jsonl]",
    "tests/benchmarks/test_peers.py::test_our_job_makes_the_table_that_pandas_makes[parquet]",
    # Clusters and many ranks. Two ranks, a killed rank: test_horovod_exchange.py, test_elastic.py.
    "tests/cluster/",
    "tests/training/test_elastic.py::test_a_cluster_of_two_workers_is_one_ring",
    "tests/training/test_elastic.py::test_a_cluster_replaces_rank_0",
    "tests/training/checkpoints/test_rows_on_demand.py::test_a_model_many_times_larger_than_the_memory_scores_the_same",
    "tests/training/test_horovod_exchange.py::test_ranks_train_as_one[4]",
    "tests/e2e/test_runs.py::test_rows_in_host_memory_change_no_training_of_two_ranks",
    # Lakes of earlier releases. The formats of their files: test_formats.py.
    "tests/upgrade/test_joined_lake.py",
    "tests/upgrade/test_migration.py",
    "tests/upgrade/test_next_run.py",
    # Long faults. A publish, a refit, prepared rows and two trainings: the other files of tests/faults,
    # tests/storage/test_publish_faults.py.
    "tests/faults/test_sigkill.py",
    "tests/faults/test_application_kills.py",
    "tests/faults/test_training_kills.py",
    "tests/faults/test_prepared_kills.py::*between two days",
    "tests/faults/test_prepared_kills.py::*before the features",
    "tests/faults/test_prepared_kills.py::*before the first day",
    "tests/faults/test_prepared_kills.py::*before the clicks of a day",
    "tests/faults/test_prepared_kills.py::*after the first prepared file",
    "tests/training/test_signed_requests.py::*[elastic]",
    # Every store and catalogue. A log on Google's store, a lake on S3 (test_object_store.py), a table of Hive.
    "tests/etl/lakes/test_hdfs.py",
    "tests/etl/lakes/test_raw_stores.py::*hdfs",
    "tests/etl/lakes/test_raw_stores.py::*azure",
    "tests/etl/lakes/test_other_readers.py",
    "tests/etl/lakes/test_object_store.py::*[sql]",
    "tests/etl/lakes/test_late_files.py::*[sql]",
    "tests/etl/lakes/test_mixed_files.py::*[sql-",
    "tests/etl/spark/test_catalogues.py::test_tables_of_a_catalogue[delta]",
    "tests/etl/spark/test_catalogues.py::test_tables_of_a_catalogue[hive_text]",
    "tests/etl/spark/test_catalogues.py::test_tables_of_a_catalogue[iceberg]",
    "tests/etl/spark/test_catalogues.py::test_the_job_with_a_profile",
    # Spark's frames beside tasks, for every kind of log. The richest log: the same files.
    "tests/etl/ops/test_engines.py::test_features_are_the_oracles[seed2-sql]",
    "tests/etl/ops/test_engines.py::test_the_order_and_the_partitions_of_rows_do_not_matter",
    "tests/etl/text/test_two_passes.py::test_spark_prepares_the_same_days",
    "tests/etl/text/test_two_passes.py::test_processes_of_this_machine_publish_the_tables_that_sparks_workers_publish[10000000-",
    "tests/etl/test_block_fit.py::test_an_extension_from_blocks_equals_one_from_frames",
    "tests/plans/test_golden.py::*[shop]",
    "tests/plans/test_jobs.py::*[shop]",
    "tests/scoring/candidates/test_collaborative.py::test_user_vectors_of_als_solve_the_normal_equations_of_the_paper",
    "tests/scoring/evaluation/test_rows_of_day.py::*[sql]",
    "tests/etl/prepare/test_latest_in_process.py::test_published_tables_are_those_of_spark[in one file",
    "tests/etl/prepare/test_prepared_passes.py::test_both_roads_publish_equal_tables[without times]",
    "tests/etl/prepare/test_prepared_passes.py::test_both_roads_publish_equal_tables[groupby]",
    "tests/etl/prepare/test_prepared_passes.py::test_both_roads_publish_equal_tables[differences]",
    "tests/etl/prepare/test_prepared_passes.py::test_both_roads_publish_equal_tables[fraction of",
    "tests/etl/test_block_fit.py::test_the_outbrain_log_has_equal_features_by_frames",
    "tests/etl/test_block_fit.py::test_a_vocabulary_of_three_million_values_is_mapped",
    "tests/etl/test_event_labels.py::test_both_ways_to_read_a_log_give_the_same_rows_as_pandas[True-refuse]",
    "tests/etl/test_event_labels.py::test_both_ways_to_read_a_log_give_the_same_rows_as_pandas[False-drop]",
    "tests/etl/test_truncated_files.py::*[sql]",
    "tests/etl/test_types.py::test_the_engine_sql_computes_the_same_features",
    "tests/e2e/test_lists.py::*[sql]",
    "tests/plans/test_accelerator_starts.py::test_a_gpu_profile_fails_for_want_of_a_device_alone",
    "tests/plans/test_golden.py::*[choices]",
    "tests/plans/test_golden.py::*[operators]",
    "tests/plans/test_golden.py::*[parquet]",
    "tests/plans/test_golden.py::*[scoring]",
    "tests/plans/test_jobs.py::*[choices]",
    "tests/plans/test_jobs.py::*[operators]",
    "tests/plans/test_jobs.py::*[parquet]",
    "tests/plans/test_jobs.py::*[scoring]",
    "tests/plans/test_jobs.py::test_the_list_names_nothing_that_is_not_needed",
    "tests/scoring/candidates/test_sources_in_process.py::test_random_logs_give_the_lists_of_spark[1-",
    "tests/scoring/candidates/test_sources_in_process.py::test_random_logs_give_the_lists_of_spark[2-",
    "tests/scoring/candidates/test_sources_in_process.py::test_the_job_publishes_what_spark_publishes[approx",
    "tests/scoring/candidates/test_sources_in_process.py::test_the_job_publishes_what_spark_publishes[exact]",
    "tests/scoring/candidates/test_source_scores.py::test_candidates_have_the_score_of_every_source_that_proposed_them[1-",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[seen items excluded]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[embeddings of one byte]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[test split]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[clicks excluded]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[source popular]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[few users in the gate]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[one filter by a table]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[all items]",
    "tests/scoring/test_in_process.py::test_both_publish_the_same[no lists in the gate]",
    "tests/scoring/candidates/test_sources_in_process.py::test_pairs_for_a_blend_are_those_of_spark",
    "tests/scoring/candidates/test_collaborative.py::test_lists_of_als_have_the_best_products_of_mllibs",
    "tests/scoring/candidates/test_collaborative.py::test_a_log_without_clicks_and_a_catalogue_of_one_item",
    "tests/scoring/candidates/test_collaborative.py::test_lists_do_not_depend_on_the_partitions_of_the_log[{'source': 'als'",
    "tests/etl/prepare/test_histories.py::test_tables_equal_frames_of_spark",
    "tests/etl/spark/test_frame_passes.py::test_the_engine_sql_publishes_what_tasks_publish",
    # A second seed, and other file splits, of the comparison of prepared rows with the oracle.
    "tests/etl/prepare/test_against_oracle.py::test_published_rows_are_the_oracles[*-2]",
    "tests/etl/prepare/test_prepared_lifecycle.py::test_tables_do_not_depend_on_file_splits_and_buckets[many buckets-d",
    "tests/etl/prepare/test_prepared_lifecycle.py::test_tables_do_not_depend_on_file_splits_and_buckets[many buckets-f",
    "tests/etl/prepare/test_prepared_lifecycle.py::test_tables_do_not_depend_on_file_splits_and_buckets[many buckets-g",
    "tests/etl/prepare/test_prepared_lifecycle.py::test_tables_do_not_depend_on_file_splits_and_buckets[many buckets-l",
    # Every architecture as an exported program. DLRM and SASRec: the same file.
    "tests/training/test_export.py::test_programs_equal_the_model[bert4rec]",
    "tests/training/test_export.py::test_programs_equal_the_model[dcn_v2",
    "tests/training/test_export.py::test_programs_equal_the_model[deepfm_",
    "tests/training/test_export.py::test_programs_equal_the_model[logistic_regression]",
    "tests/training/test_export.py::test_programs_equal_the_model[neumf",
    "tests/training/test_export.py::test_programs_equal_the_model[mult_vae]",
    "tests/training/test_export.py::test_programs_equal_the_model[sasrec_dropout]",
    "tests/training/test_export.py::test_programs_equal_the_model[two_tower]",
    "tests/training/test_export.py::test_compiled_programs_equal_the_model",
    "tests/training/test_precision.py::test_a_compiled_training_is_the_same",
    "tests/training/checkpoints/test_two_attempts.py::test_on_an_object_store_checkpoints_do_not_mix",
    "tests/jobs/test_nights_without_a_jvm.py::test_a_night_with_every_source_of_candidates",
    "tests/jobs/test_nights_without_a_jvm.py::test_a_night_of_a_shop[shop_parquet",
)


def beginnings(patterns: Iterable[str] = EXTENDED) -> dict[str, re.Pattern[str]]:
    """Returns, for each pattern, the regular expression that `re.match` finds in the ids of its tests."""
    return {
        pattern: re.compile(".*".join(re.escape(part) for part in pattern.split("*"))) for pattern in patterns
    }
