-- database_oid --
-- What tells this database from its copies on the same server, and whether this role may ask for the server's identifier.
SELECT oid::bigint, has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
FROM pg_database WHERE datname = current_database()

-- system_identifier --
-- What tells this server, with its replicas, from every other.
SELECT system_identifier FROM pg_catalog.pg_control_system()
