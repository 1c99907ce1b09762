-- Deletes all limits of this database.
DO $$
DECLARE t text;
BEGIN
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'workglow_limit' AND tablename <> 'version' LOOP
        EXECUTE format('DELETE FROM workglow_limit.%I', t);
    END LOOP;
END $$;
