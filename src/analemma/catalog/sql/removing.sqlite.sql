-- hold_branches --
-- With one writer no branch begins at this moment, and there is nothing to wait for.
SELECT 1 FROM workflow WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow

-- hold_branch --
-- With one writer nobody builds on a version at this moment, and there is nothing to wait for.
SELECT id FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch LIMIT 1
