"""The operations of a SavedModel's graph, and those that it may have."""

# What the graph may be made of: operations of TensorFlow itself, present in any model server, and
# those of SentencePiece. No XLA operation is among them: a server may be built without XLA. Before
# a new operation is added here, look whether a model server has it.
ALLOWED = set(
    """
    AddV2 All Any ArgMax Assert AssignVariableOp BatchMatMulV2 BiasAdd Bitcast BitwiseAnd
    BitwiseOr BroadcastTo Cast ConcatV2 Const Cos Cumsum DenseBincount DisableCopyOnRead
    EnsureShape Equal Erf Exp ExpandDims Fill Floor FloorDiv FloorMod GatherV2 Greater
    GreaterEqual Identity IdentityN If IsFinite Less LessEqual Log LogicalAnd LogicalNot LogicalOr
    MatMul Max Maximum Mean MergeV2Checkpoints Min Minimum Mul Neg NoOp NotEqual OneHot Pack Pad
    PadV2 PartitionedCall Placeholder Pow Prod RaggedGather RaggedRange RaggedTensorFromVariant
    RaggedTensorToTensor RaggedTensorToVariant Range ReadVariableOp RealDiv Relu Reshape RestoreV2
    Round Rsqrt SaveV2 Select SelectV2 SentencepieceDetokenizeOp SentencepieceOp
    SentencepieceTokenizeOp Shape ShardedFilename Sin Size Slice Softmax Split SplitV Sqrt Square
    SquaredDifference Squeeze StatefulPartitionedCall StatelessIf StatelessWhile
    StaticRegexFullMatch StaticRegexReplace StopGradient StridedSlice StringJoin StringSplitV2 Sub
    Sum Tanh TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem
    TensorListStack TensorScatterUpdate Tile TopKV2 Transpose UnicodeTranscode Unpack
    UnsortedSegmentJoin UnsortedSegmentMax UnsortedSegmentSum VarHandleOp Where ZerosLike
    """.split()
)


def operations(directory):
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    content.ParseFromString((directory / "saved_model.pb").read_bytes())
    nodes = []
    for meta_graph in content.meta_graphs:
        nodes.extend(meta_graph.graph_def.node)
        for function in meta_graph.graph_def.library.function:
            nodes.extend(function.node_def)
    return {node.op for node in nodes}
