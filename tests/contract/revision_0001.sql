-- A database of revision 0001, as the Rota of that day wrote it: `sqlite3 rota.db .dump`.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE attempts (
	id TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	gpus INTEGER NOT NULL, 
	planned_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE NOT NULL, 
	cause TEXT NOT NULL, 
	code INTEGER, 
	gpu_s DOUBLE NOT NULL, 
	body TEXT NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "attempts" VALUES('79b97f4a7c15-1','79b97f4a7c15',1,'ann',4,1000.0,1000.0,1030.0,'exited',3,120.0,'{"id":"79b97f4a7c15-1","number":1,"placement":[{"node":"node2","gpus":15}],"planned_at":1000.0,"started_at":1000.0,"ended_at":1030.0,"exit":{"cause":"exited","code":3,"started_tick":500.0,"ended_tick":530.0},"gpu_s":120.0}',2767115461);
CREATE TABLE checkpoints (
	seq INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	body BLOB NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY (seq)
);
INSERT INTO "checkpoints" VALUES(12,1000.0,X'7801BD565D6F9B4010FC2BD13DE314CEF8F317B452FBD2BCB589D0C12D360D1CE4E0E24496FF7B67C1D8D84A5A3972FB6458EDCDEDEEEC8CD98A67B275561AB10CA42754835FDFF76F7D4F187A69A29A9EC472E289AACCB3E4552CB7A2B49A6C665662295295D9A85E2B4BC213AE261BE559913535A72903C8AD58550EAFD3DD6E070C851CCDD1FE2955794D9ED8AC812C045280817A3885AA3259A3184FC465D94419CEB54F9C654A4D40FDB9156D985F0354B02EEBC6A88290D987BAEB39D1687A114BB4E55C7BE8EECBB75130F271AC79ADF8C85D56B85C35A46F3E630288175494F6355AC56239C74076DE0105459DA0F0E597A360DC2728F24328E33394F105280F9E485A7E02393FE937F065C82B50F73311CBC63A6A47C044F078B9DCB38973E8CF13975799B81C5D63E272748D89CBD1BF9CB827B4559961D53001FBD7A8134CAA8CD8814357AB1536780B7D60575BCD459047205B191F250DE51C55C919323CCF408A7566A0ADD9225ECCD250CD926002765B3BE0F58750B1070C87604509DFBBD7DEAF326EF95176F50C910A2E5CA0CC4D691F75C6C73E6D70CAD293A31A7ED39B4488CBC9E0C8567CFD8E2CFF3660B1E72AA61C15C152108C053B49DD40A87843AD86AD08DE62B3D2660D7C04B2AA5D0C1B8294A363F3C07E419D1C04D8B46DFC10496D59004E53AA5CDE004EE17451357554288D8BD0F13EC275B4FE311C4CDBAE7145CC43416E4A26E94E55B94AA820833661422C1B5CD3ABA7934A30610E916840F349C17DACC992479870E7CA879AC9602902BFEB248109AF701C90036231267B3E858AAB0F652831C77D2BE97826535A84E95C2AA6932D9FCDA9E39897EA4D8E593D97722C41DE91AAF180CAB6D6732E616EFF83CBE1003EC0259B51C7E5F8FA54B62A3E7235D53299699DCEC271DA73C57F011D573FCA7BE7FB14DFDCBB309DFAF76EB298E9B7D963D7BA94BDF9507B6BCA19FAC8E615847758499AD224D57291FA93B06F333CB4F9AEED70EE5F9AD254413975C45F3C90241CA4FBB618EA19289B3521017EA4E1BDBB87C1A2C2B51C6257EE1C37AAACC1FE5F5AD8C3EE3772CC04CA',217220144);
CREATE TABLE events (
	seq INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	type TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	run_id TEXT, 
	"by" TEXT NOT NULL, 
	body TEXT NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY (seq)
);
INSERT INTO "events" VALUES(13,1030.0,'AttemptEnded',1,'79b97f4a7c15','rota','{"attempt_id":"79b97f4a7c15-1","exit":{"cause":"exited","code":3,"started_tick":500.0,"ended_tick":530.0},"gpu_s":120.0,"next":"failed","why":"exited"}',975794562);
INSERT INTO "events" VALUES(14,1035.0,'NodeResumed',1,NULL,'rota','{"node_id":"node2"}',1877767564);
INSERT INTO "events" VALUES(15,1035.0,'AttemptPlanned',1,'e6e5fd29f054','rota','{"attempt_id":"e6e5fd29f054-1","tick":535.0,"fence":1,"placement":[{"node":"node1","gpus":4}]}',3586840348);
INSERT INTO "events" VALUES(16,1040.0,'AttemptStarted',1,'f372fe94f82a','rota','{"attempt_id":"f372fe94f82a-1","pid":4242}',263300952);
INSERT INTO "events" VALUES(17,1040.0,'RunSubmitted',1,'609f7c746c69','bob','{"seq":5,"user":"bob","held":false,"waiting_on":[],"expected_s":60.0,"expected_from":"default","spec":{"name":"job-5","argv":["true"],"workdir":"/w","env":{}}}',1135064359);
INSERT INTO "events" VALUES(18,1040.0,'RunEnded',1,'609f7c746c69','ann','{"state":"cancelled","why":"asked"}',723702940);
INSERT INTO "events" VALUES(19,1040.0,'SchedulingPaused',1,NULL,'rota','{"why":"soon"}',1136794154);
CREATE TABLE head (
	id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	next_seq INTEGER NOT NULL, 
	live INTEGER NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "head" VALUES(1,1,19,1040.0,6,3,985482708);
CREATE TABLE keys (
	principal TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (principal, "key")
);
INSERT INTO "keys" VALUES('ann','k2','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd','79b97f4a7c15',1040.0);
CREATE TABLE nodes (
	id TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "nodes" VALUES('node1',2,'{"id":"node1","hostname":"node1","gpus":[{"index":0,"uuid":"SIM-1-0","type":"Simulated H100","memory_gb":80.0},{"index":1,"uuid":"SIM-1-1","type":"Simulated H100","memory_gb":80.0},{"index":2,"uuid":"SIM-1-2","type":"Simulated H100","memory_gb":80.0},{"index":3,"uuid":"SIM-1-3","type":"Simulated H100","memory_gb":80.0}],"cpus":128,"memory_gb":1024.0,"simulated":true}',3296443543);
INSERT INTO "nodes" VALUES('node2',3,'{"id":"node2","hostname":"node2","gpus":[{"index":0,"uuid":"SIM-2-0","type":"Simulated H100","memory_gb":80.0},{"index":1,"uuid":"SIM-2-1","type":"Simulated H100","memory_gb":80.0},{"index":2,"uuid":"SIM-2-2","type":"Simulated H100","memory_gb":80.0},{"index":3,"uuid":"SIM-2-3","type":"Simulated H100","memory_gb":80.0}],"cpus":128,"memory_gb":1024.0,"simulated":true}',3594806710);
CREATE TABLE runs (
	seq INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	user TEXT NOT NULL, 
	name TEXT NOT NULL, 
	state TEXT NOT NULL, 
	live INTEGER NOT NULL, 
	priority INTEGER NOT NULL, 
	gpus INTEGER NOT NULL, 
	submitted_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	spec TEXT NOT NULL, 
	env TEXT NOT NULL, 
	spec_sum INTEGER NOT NULL, 
	facts TEXT NOT NULL, 
	facts_sum INTEGER NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (id)
);
INSERT INTO "runs" VALUES(1,'79b97f4a7c15','ann','job-1','failed',0,2,4,1000.0,1030.0,'{"name":"job-1","argv":["true"],"workdir":"/w","request":{"gpus":4},"labels":{"a":"b"}}','{"LR":"0.1"}',225235588,'{"expected_s":60.0,"expected_from":"default","attempts_made":1,"past":[{"id":"79b97f4a7c15-1","number":1,"placement":[{"node":"node2","gpus":15}],"planned_at":1000.0,"started_at":1000.0,"ended_at":1030.0,"exit":{"cause":"exited","code":3,"started_tick":500.0,"ended_tick":530.0},"gpu_s":120.0}],"why":"exited"}',3948548154);
INSERT INTO "runs" VALUES(2,'f372fe94f82a','bob','job-2','running',1,3,2,1000.0,NULL,'{"name":"job-2","argv":["true"],"workdir":"/w","request":{"gpus":2},"priority":3}','{}',2761734441,'{"expected_s":60.0,"expected_from":"default","attempts_made":1,"attempt":{"id":"f372fe94f82a-1","number":1,"fence":1,"placement":[{"node":"node1","gpus":3}],"planned_at":1000.0,"planned_tick":500.0,"expected_end":1060.0,"charged_gpu_s":120.0,"started_at":1040.0,"pid":4242}}',4063304728);
INSERT INTO "runs" VALUES(3,'6d2c7ddf743f','Zoë 你好','job-3','held',1,2,8,1000.0,NULL,'{"name":"job-3","argv":["true"],"workdir":"/w","request":{"gpus":8}}','{}',3636060208,'{"expected_s":60.0,"expected_from":"default"}',249783497);
INSERT INTO "runs" VALUES(4,'e6e5fd29f054','ann','job-4','starting',1,2,1,1000.0,NULL,'{"name":"job-4","argv":["true"],"workdir":"/w","depends_on":[{"run_id":"79b97f4a7c15","when":"ended"}]}','{}',2974372605,'{"expected_s":60.0,"expected_from":"default","attempts_made":1,"attempt":{"id":"e6e5fd29f054-1","number":1,"fence":1,"placement":[{"node":"node1","gpus":4}],"planned_at":1035.0,"planned_tick":535.0,"expected_end":1095.0,"charged_gpu_s":60.0}}',2604509665);
INSERT INTO "runs" VALUES(5,'609f7c746c69','bob','job-5','cancelled',0,2,1,1040.0,1040.0,'{"name":"job-5","argv":["true"],"workdir":"/w"}','{}',4195800504,'{"expected_s":60.0,"expected_from":"default","why":"asked"}',1222203140);
CREATE TABLE settings (
	"key" TEXT NOT NULL, 
	body TEXT NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "settings" VALUES('policy','{"ordering":"fair_share","user_limits":{"ann":{"gpus":6}}}',750265067);
INSERT INTO "settings" VALUES('paused','{"paused":true,"why":"soon"}',2136752780);
INSERT INTO "settings" VALUES('server','{"epoch":1,"boot_id":"boot"}',2733078907);
CREATE TABLE usage (
	user TEXT NOT NULL, 
	gpu_s DOUBLE NOT NULL, 
	at DOUBLE NOT NULL, 
	sum INTEGER NOT NULL, 
	PRIMARY KEY (user)
);
INSERT INTO "usage" VALUES('bob',120.0,1000.0,3835754878);
INSERT INTO "usage" VALUES('ann',1.79999312355957783891e+02,1035.0,2557830883);
CREATE INDEX events_run ON events (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX runs_live ON runs (seq) WHERE live = 1;
CREATE INDEX runs_user ON runs (user, seq);
CREATE INDEX runs_ended ON runs (ended_at) WHERE live = 0;
CREATE INDEX runs_outcome ON runs (state, seq) WHERE live = 0;
CREATE INDEX attempts_ended ON attempts (ended_at);
CREATE INDEX attempts_run ON attempts (run_id, number);
CREATE INDEX keys_at ON keys (at);
COMMIT;
